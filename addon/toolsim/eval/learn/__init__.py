"""``toolsim tune``: which settings suit a model, found out by asking it.

``bank`` has the questions, ``decisions`` what there is to decide, ``rule`` says when one setting is better than
another, ``course`` goes through the decisions, ``answers`` asks the model through a real toolsim, ``memory`` keeps
the answers for the next time, ``profile_file`` writes what came out, ``command`` is the command.
"""
