#!/bin/sh
# A program as entrypoint: any executable, in any language. It reads what it is from the
# environment and may report a result, as JSON, to the file that LLLAUNCH_RESULT_FILE names.
#
#     python -m lllaunch +exp=program

set -eu

echo "I am the $COLOUR one, $RANK of $WORLD_SIZE; called with: $*"
echo "{\"rank\": $RANK, \"colour\": \"$COLOUR\"}" > "${LLLAUNCH_RESULT_FILE:-/dev/null}"
