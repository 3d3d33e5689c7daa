"""Coverage-guided fuzzing of everything that reads bytes we did not write: see README.md here."""
