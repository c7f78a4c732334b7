"""Configuration: scenarios, settings on the command line, and messages that name the remedy."""

from __future__ import annotations

from shoal.config.checks import DEFAULT_STEPS, check_environment, with_default_stop
from shoal.config.dump import dump_yaml
from shoal.config.load import (
    left_out,
    load_config,
    load_named,
    load_scenario,
    load_target,
    scenario_names,
    scenarios_for,
    settings_for,
)
from shoal.config.merge import Overrides
from shoal.config.resume import change_for_resume
from shoal.config.signature import sign, write_config
from shoal.config.trust import require_trust
from shoal.loops.settings import RunSettings

__all__ = [
    "DEFAULT_STEPS",
    "Overrides",
    "RunSettings",
    "change_for_resume",
    "check_environment",
    "dump_yaml",
    "left_out",
    "load_config",
    "load_named",
    "load_scenario",
    "load_target",
    "require_trust",
    "scenario_names",
    "scenarios_for",
    "settings_for",
    "sign",
    "with_default_stop",
    "write_config",
]
