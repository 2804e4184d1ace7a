"""What is done to whole archives: proven, compared, copied, exported, and rid of garbage."""
