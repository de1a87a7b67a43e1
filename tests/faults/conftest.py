"""What the tests here share is not looked through for examples: it needs Flower to be imported."""

collect_ignore = ["replies.py", "processes.py", "deployment.py"]
