"""RoboDesk with distractors: a robot arm at a desk."""
