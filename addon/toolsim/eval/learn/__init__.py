"""``toolsim tune``: finds the settings that suit a model by asking it questions.

``question_bank`` contains the questions, ``decisions`` the decisions to make, ``rule`` determines when one setting is
better than another, ``session`` goes through the decisions, ``answers`` queries the model through a real toolsim,
``memory`` keeps the answers for the next time, ``profile_file`` writes the result, ``command`` is the command.
"""
