#!/data/data/com.termux/files/usr/bin/sh
# Installs Baton in Termux (Android) from an unpacked archive: sh share/baton/termux.sh
# With the package termux-services, `sv up baton` then runs `baton serve` in the background.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
prefix=${PREFIX:?run this in Termux}
install -m 0755 "$here/bin/baton" "$prefix/bin/baton"
mkdir -p "$prefix/share/man/man1" "$prefix/share/bash-completion/completions"
cp "$here"/share/man/man1/*.1 "$prefix/share/man/man1/"
cp "$here/share/bash-completion/completions/baton" "$prefix/share/bash-completion/completions/baton"
if [ -d "$prefix/var/service" ]; then
  mkdir -p "$prefix/var/service/baton"
  printf '%s\n' "#!$prefix/bin/sh" "exec baton serve 2>&1" > "$prefix/var/service/baton/run"
  chmod 0755 "$prefix/var/service/baton/run"
  # Not started before the person wants it.
  touch "$prefix/var/service/baton/down"
  printf 'start it by: sv up baton\n'
fi
"$prefix/bin/baton" --version
