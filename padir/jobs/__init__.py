"""Long jobs that are neither training nor evaluation."""
