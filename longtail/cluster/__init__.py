"""Work on several machines, through Ray; nothing here is imported until somebody asks for it.

connection: which cluster, and whether its nodes suit · tasks: work handed out, whatever dies ·
networks: trained by processes of several nodes · process: one of these · predict: documents
labelled into a folder of parts · parts: that folder · model_folder: the model on every node.
"""

from longtail.cluster.connection import check_address, connected
from longtail.cluster.networks import NetworkTrainer
from longtail.cluster.predict import Request, predict

__all__ = ["NetworkTrainer", "Request", "check_address", "connected", "predict"]
