"""Neural networks: torsos (observation to features), heads (features to values), and both put together."""

from shoal.networks.actor_critic import ActorCritic as ActorCritic
from shoal.networks.communication import CommunicationNetwork as CommunicationNetwork
from shoal.networks.communication import TeamParts as TeamParts
from shoal.networks.continuous import CriticNetwork as CriticNetwork
from shoal.networks.continuous import PolicyNetwork as PolicyNetwork
from shoal.networks.continuous import mark_as_learned as mark_as_learned
from shoal.networks.continuous import mean_and_log_std as mean_and_log_std
from shoal.networks.ensemble import EnsembleMLP as EnsembleMLP
from shoal.networks.heads import QHead as QHead
from shoal.networks.inputs import SeveralInputs as SeveralInputs
from shoal.networks.inputs import make_torso as make_torso
from shoal.networks.own import MakeOwn as MakeOwn
from shoal.networks.own import OwnTorso as OwnTorso
from shoal.networks.q_networks import QNetwork as QNetwork
from shoal.networks.recurrent_q import RecurrentQ as RecurrentQ
from shoal.networks.recurrent_q import RecurrentQNetwork as RecurrentQNetwork
from shoal.networks.residual import ResidualCNN as ResidualCNN
from shoal.networks.scratch import Scratch as Scratch
from shoal.networks.torso import MLP as MLP
from shoal.networks.torso import NatureCNN as NatureCNN
from shoal.networks.torso import SmallCNN as SmallCNN
from shoal.networks.torso import TinyCNN as TinyCNN
from shoal.networks.torso import center_images as center_images
