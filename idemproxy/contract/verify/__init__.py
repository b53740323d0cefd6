"""`contract verify`: what a document promises, tried at a live deployment, whoever built it.

It shares no table with the proxy on purpose: a probe that did could not find them wrong.
"""
