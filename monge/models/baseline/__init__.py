"""Closed-form references: laws fitted by counting, against which every other model is measured."""
