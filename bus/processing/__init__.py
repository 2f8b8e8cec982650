"""The processing loop: handlers of records with workers, in order, with commits that follow the work."""

from bus.processing.run import ProcessingRun
from bus.processing.running_consumer import RunningConsumer
from bus.processing.settings import ProcessingSettings, parse_settings
from bus.processing.transactional_output import Output
from bus.processing.work import RecordFailed, RunSummary
from bus.processing.workers import Acknowledgement

__all__ = [
    "Acknowledgement",
    "Output",
    "ProcessingRun",
    "ProcessingSettings",
    "RecordFailed",
    "RunSummary",
    "RunningConsumer",
    "parse_settings",
]
