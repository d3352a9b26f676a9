"""Every setting of a study: its type, default and bounds, and how presets are composed."""
