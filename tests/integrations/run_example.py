"""Run a script once for each list of options, under torchrun: `SCRIPT '[["--epochs=1"], []]'`.

One start for several runs, since starting takes longer than they do. It also helps torchvision to
be imported on machines where it does not import by itself.
"""

from __future__ import annotations

import json
import os
import runpy
import sys

from infobatch_lab.errors import declare_torchvision_operators

if __name__ == "__main__":
    declare_torchvision_operators()
    script, runs = sys.argv[1:]
    port = int(os.environ["MASTER_PORT"])
    for number, options in enumerate(json.loads(runs)):
        # The processes meet elsewhere in each run: rank 0 may not have left the old place yet.
        os.environ["MASTER_PORT"] = str(port + number)
        sys.argv = [script, *options]
        runpy.run_path(script, run_name="__main__")
