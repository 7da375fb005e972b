"""The names of the files and folders in a run's folder."""

CONFIG = "config.json"
MODEL = "model.json"
ENVIRONMENT = "environment.json"
METRICS = "metrics.jsonl"
RESULT = "result.json"
EVALUATION = "evaluation.json"
NAN_NOTE = "nan.json"
REPORT = "report.html"
BEST = "best.keras"
BEST_MODELS = "best"
FINAL = "final.keras"
LOCK = "lock"
CHECKPOINTS = "checkpoints"

# Written when a run starts. Without the first one, a folder is not a run.
DESCRIPTION = (CONFIG, MODEL, ENVIRONMENT)
