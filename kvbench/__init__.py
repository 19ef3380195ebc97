"""kvbench: may this KV-cache tier go to production, and may it stay there?"""

__version__ = "0.1.0"
