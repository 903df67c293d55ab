"""What is read and told of a state directory: documents, progress, reports, statistics, traces and alerts."""
