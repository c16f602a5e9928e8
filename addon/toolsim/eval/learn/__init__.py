"""Implements ``toolsim tune``, which finds the settings that suit a model by asking the model questions.

``question_bank`` contains the questions, ``decisions`` defines the decisions, ``rule`` determines when one setting is
better than another, ``session`` makes the decisions, ``answers`` queries the model through a running toolsim,
``memory`` stores the verdicts for later runs, ``profile_file`` writes the result, and ``command`` runs the command.
"""
