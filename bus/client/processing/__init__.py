"""The processing loop: handlers of records with workers, in order, with commits that follow the work."""

from bus.client.processing.handlers import Acknowledgement
from bus.client.processing.run import ProcessingRun
from bus.client.processing.settings import ProcessingSettings, parse_settings
from bus.client.processing.summary import RecordFailed, RunSummary

__all__ = ["Acknowledgement", "ProcessingRun", "ProcessingSettings", "RecordFailed", "RunSummary", "parse_settings"]
