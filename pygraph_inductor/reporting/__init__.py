"""What happened to each compiled function and why: facts as data (`facts`), as text for people (`table`)."""

from pygraph_inductor.reporting.facts import FunctionFacts, RecordingFacts, Report

__all__ = ["FunctionFacts", "RecordingFacts", "Report"]
