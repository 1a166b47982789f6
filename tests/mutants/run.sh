#!/bin/sh
# Plants each small fault of this folder into a copy of the sources and says which test notices it;
# see mutants.py.  `run.sh` all, `run.sh NAME...` some, `run.sh --share 10 --seed X` a tenth by chance.
exec python3 "$(dirname "$0")/mutants.py" "$@"
