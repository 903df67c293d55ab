"""The project, the scripted model and the story of `chargehand demo`."""
