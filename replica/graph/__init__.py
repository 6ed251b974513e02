"""Traced functions under the rule table: a finished graph is emitted again for local shapes, operation by operation."""
