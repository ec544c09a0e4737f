#!/bin/sh
# Runs a compiler and fails when ptxas says that it has serialized wgmma instructions, or put waits of its own
# between them: the tensor cores then wait for each product before the next one begins. ptxas calls that information
# only, so -Werror does not see it.
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
"$@" >"$log" 2>&1
status=$?
cat "$log" >&2
if [ "$status" -eq 0 ] && grep -q -e 'are serialized' -e 'warpgroup\.[a-z]* is injected' "$log"; then
  echo "error: wgmma instructions are serialized (see above)" >&2
  exit 1
fi
exit "$status"
