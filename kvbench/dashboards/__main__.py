"""Make the files in the repository's `dashboards/` anew: `python -m kvbench.dashboards`."""

from __future__ import annotations

from kvbench.dashboards.budgets import Budgets
from kvbench.dashboards.export import write
from kvbench.dashboards.generate import boards, rules
from kvbench.spec.shipped import shipped_folder

if __name__ == "__main__":
    for path in write(shipped_folder("dashboards"), {**boards(), **rules(Budgets())}):
        print(path)
