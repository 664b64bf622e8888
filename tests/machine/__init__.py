"""The module as a state machine: what people do with modules, in any order, beside a plain twin."""
