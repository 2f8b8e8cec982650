"""Answers each call of a broker: values and the access of the caller in, values out.

All that decides about a call as a whole is here, above the rules of one partition, group or topic; adapters convert
messages to values and back. So every protocol that the broker speaks gives the same answers.
"""
