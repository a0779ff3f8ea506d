"""From a model's jaxpr to facts about it. Each folder is a stage; see README.md."""
