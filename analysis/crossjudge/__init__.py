"""Every final policy under every judge: who likes what it taught."""
