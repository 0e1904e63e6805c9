"""One file per published method. Importing this package registers them all."""

from fedkin.methods.acd import ACD
from fedkin.methods.apfl import APFL
from fedkin.methods.base import LocalWork, Method, State
from fedkin.methods.cfl import CFL
from fedkin.methods.ditto import Ditto
from fedkin.methods.fedala import FedALA
from fedkin.methods.fedavg import FedAvg, LocalizedFedAvg
from fedkin.methods.feddeper import FedDeper
from fedkin.methods.feddyn import FedDyn
from fedkin.methods.fedfomo import FedFomo
from fedkin.methods.fedopt import FedAdam, FedAvgM, FedYogi
from fedkin.methods.fedper import FedBN, FedPer, LGFedAvg
from fedkin.methods.fedprox import FedProx
from fedkin.methods.fedrep import FedBABU, FedRep
from fedkin.methods.ifca import IFCA
from fedkin.methods.l2sgd import L2SGD
from fedkin.methods.local import Local
from fedkin.methods.lsgd import LSGD
from fedkin.methods.perfedavg import PerFedAvg
from fedkin.methods.perm import Perm
from fedkin.methods.perm_models import PermModels
from fedkin.methods.perm_printed import PermPrinted, PermTwoStage
from fedkin.methods.pfedhn import PFedHN
from fedkin.methods.pfedkm import PFedKM
from fedkin.methods.pfedme import PFedMe
from fedkin.methods.scaffold import Scaffold
from fedkin.methods.scd import ASCD, SCD
from fedkin.methods.submodel import Submodel, SubmodelLocal
from fedkin.methods.submodel_alone import SubmodelAlone
from fedkin.methods.submodel_ditto import SubmodelDitto
from fedkin.methods.submodel_kin import SubmodelPerm
from fedkin.methods.submodel_masks import SubmodelMasks
from fedkin.methods.submodel_perm import SubmodelPermPrinted, SubmodelPermTwoStage
from fedkin.methods.svrcd import ASVRCD, SVRCD

__all__ = [
    "ACD",
    "APFL",
    "ASCD",
    "ASVRCD",
    "CFL",
    "IFCA",
    "L2SGD",
    "LSGD",
    "SCD",
    "SVRCD",
    "Ditto",
    "FedALA",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedBABU",
    "FedBN",
    "FedDeper",
    "FedDyn",
    "FedFomo",
    "FedPer",
    "FedProx",
    "FedRep",
    "FedYogi",
    "LGFedAvg",
    "Local",
    "LocalWork",
    "LocalizedFedAvg",
    "Method",
    "PFedHN",
    "PFedKM",
    "PFedMe",
    "PerFedAvg",
    "Perm",
    "PermModels",
    "PermPrinted",
    "PermTwoStage",
    "Scaffold",
    "State",
    "Submodel",
    "SubmodelAlone",
    "SubmodelDitto",
    "SubmodelLocal",
    "SubmodelMasks",
    "SubmodelPerm",
    "SubmodelPermPrinted",
    "SubmodelPermTwoStage",
]
