#!/usr/bin/env bash
# Sets up cross building and testing for aarch64 Linux on a Debian 12 amd64
# machine, as root, from apt and PyPI alone. Safe to run again: what is already
# there is kept.
#
#   usage: setup.sh               compiler and emulator
#          S390X=1 setup.sh       the same, and big-endian s390x
#          I686=1 setup.sh        the same, and 32-bit i686
#          ARM_PYTHON=1 setup.sh  the same, and a Python for aarch64
#
#   ARM_ROOT  folder for all that is unpacked       (default /opt/arm64)
#   ARM_RUST  Debian rustc-web version, e.g. 1.85   (default: newest for arm64)
#   ARM_PIP   PyPI packages for the ARM Python      (default "numpy pytest")
#
# Debian 12 ships rustc-web with a standard library for each architecture. Its
# debs are unpacked, not installed, so the machine's own Rust and its list of
# architectures stay as they are. Installed by the machine's own apt are only
# the cross gcc, qemu-user and a few small libraries that LLVM links with.
set -Eeuo pipefail

root=${ARM_ROOT:-/opt/arm64}
want=${ARM_RUST:-}
pypi=${ARM_PIP:-numpy pytest}
big=${S390X:-}
small=${I686:-}
python=${ARM_PYTHON:-}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

say() { printf 'arm-setup: %s\n' "$*"; }
die() { trap - ERR; printf 'arm-setup: FAILED: %s\n' "$*" >&2; exit 1; }
trap 'die "line $LINENO: $BASH_COMMAND"' ERR

[ "$(id -u)" = 0 ] || die "run as root"
[ "$(dpkg --print-architecture)" = amd64 ] || die "needs an amd64 machine"
grep -q '^VERSION_CODENAME=bookworm' /etc/os-release || die "needs Debian 12 (bookworm)"
[ -f "$keyring" ] || die "$keyring is missing (package debian-archive-keyring)"
case $root in /*) ;; *) die "ARM_ROOT must be an absolute path" ;; esac
umask 022
export DEBIAN_FRONTEND=noninteractive
patience=(-o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20 -o Acquire::Retries=2)
mkdir -p "$root"/{apt/lists/partial,apt/cache/archives/partial,bin}
exec 9>"$root/lock"
flock 9

# What an earlier run put there stays, so that targets can be added one by one.
have=$(cat "$root/done" 2>/dev/null || true)
case $have in "rust=$want "*) ;; *) have= ;; esac
case " $have " in *" s390x "*) was_big=1 ;; *) was_big= ;; esac
case " $have " in *" i686 "*) was_small=1 ;; *) was_small= ;; esac
case " $have " in *" python=$pypi "*) was_python=1 ;; *) was_python= ;; esac
if [ -n "$have" ] && [ -z "$big" -o -n "$was_big" ] && [ -z "$small" -o -n "$was_small" ] && [ -z "$python" -o -n "$was_python" ] &&
  qemu-aarch64 --version >/dev/null && aarch64-linux-gnu-gcc --version >/dev/null; then
  say "already set up in $root (remove $root/done to do it again)"
  exit 0
fi
big=${big:-$was_big} small=${small:-$was_small} python=${python:-$was_python}
key="rust=$want${big:+ s390x}${small:+ i686}${python:+ python=$pypi }"
rm -rf "$root"/{done,debs.????,std.????,try.????}  # and what a run cut short left

# --- 1. Debian packages on the machine itself --------------------------------
host=(gcc libc6-dev gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
      libedit2 libxml2 libz3-4 libzstd1 zlib1g)
[ -z "$big" ] || host+=(gcc-s390x-linux-gnu libc6-dev-s390x-cross)
[ -z "$small" ] || host+=(gcc-i686-linux-gnu libc6-dev-i386-cross)
[ -z "$python" ] || python3 -m pip --version >/dev/null 2>&1 || host+=(python3 python3-pip)
need=()
for p in "${host[@]}"; do
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null || true)" = installed ] || need+=("$p")
done
apt-get "${patience[@]}" update -qq || say "apt-get update had errors; going on"
if [ ${#need[@]} -gt 0 ]; then
  say "apt-get install ${need[*]}"
  apt-get "${patience[@]}" install -y -qq --no-install-recommends --no-remove "${need[@]}" >"$root/apt.log" 2>&1 ||
    { tail -n 20 "$root/apt.log" >&2; die "apt-get install (its last lines are above)"; }
fi

# --- 2. A private apt that knows arm64 on the machine's own mirrors ---------
# shellcheck disable=SC2016  # apt fills these in
apt-get indextargets --format '$(REPO_URI) $(CODENAME) main' 'Created-By: Packages' 'Origin: Debian' | sort -u |
  sed -nE "/ bookworm(-security|-updates)? main$/s|^|deb [signed-by=$keyring] |p" >"$root/apt/sources.list"
grep -q ' bookworm main' "$root/apt/sources.list" || die "this machine's apt has no Debian bookworm source"
: >"$root/apt/status"
conf() { # conf FILE ARCH... : an apt configuration with an empty package state
  cat >"$1" <<CONF
Dir::Etc::SourceList "$root/apt/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
Dir::State::Lists "$root/apt/lists";
Dir::State::Status "$root/apt/status";
Dir::Cache "$root/apt/cache";
APT::Sandbox::User "root";
APT::Install-Recommends "false";
Acquire::http::Timeout "20";
Acquire::Retries "2";
APT::Architecture "$2";
$(printf 'APT::Architectures:: "%s";\n' "${@:2}")
CONF
}
conf "$root/apt/cross.conf" amd64 arm64
conf "$root/apt/arm64.conf" arm64
xapt() { APT_CONFIG=$root/apt/cross.conf "$@"; }
unpack() { # unpack FOLDER PACKAGE... : fetch debs and unpack them there
  local to=$1 tmp d; shift
  tmp=$(mktemp -d "$root/debs.XXXX")
  xapt env -C "$tmp" apt-get download -qq "$@"
  mkdir -p "$to"
  for d in "$tmp"/*.deb; do dpkg-deb -x "$d" "$to"; done
  rm -r "$tmp"
}
say "reading package lists"
xapt apt-get update -qq

# --- 3. The compiler with its standard libraries -----------------------------
v=$(xapt apt-cache madison libstd-rust-web-dev:arm64 |
  awk -F' *[|] *' -v p="$want" '/ arm64 Packages/ && index($2, p) == 1 {print $2}' | sort -V | tail -n 1)
[ -n "$v" ] || die "Debian has no rustc-web '$want' for arm64"
mm=$(cut -d. -f1,2 <<<"$v")
rust=$root/rust-$mm
if [ "$(cat "$rust/version" 2>/dev/null || true)" != "$v" ]; then
  llvm=$(xapt apt-cache show "libstd-rust-web-$mm=$v" | sed -nE 's/^Depends:.*(libllvm[0-9]+).*/\1/p')
  say "unpacking rustc-web $v and $llvm into $rust"
  rm -rf "$rust"
  unpack "$rust" "rustc-web:amd64=$v" "libstd-rust-web-$mm:amd64=$v" "$llvm:amd64" "rust-web-clippy:amd64=$v" \
    "libstd-rust-web-dev:amd64=$v" "libstd-rust-web-dev:arm64=$v"
  # Wrappers, since the compiler finds its own and LLVM's library by this path.
  for t in rustc rustdoc cargo-clippy; do
    cat >"$rust/$t" <<WRAP
#!/bin/sh
export LD_LIBRARY_PATH=$rust/usr/lib/x86_64-linux-gnu\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}
exec $rust/usr/bin/$t "\$@"
WRAP
    chmod 755 "$rust/$t"
  done
  printf '%s\n' "$v" >"$rust/version"
fi
"$rust/rustc" -V >/dev/null || die "$rust/rustc does not run"
ln -sfn "$rust" "$root/rust"

# Debian 12 has no s390x library of the newest version (and its list of i386
# packages was seen out of step), so these are built once from Debian's source of
# that very version (a minute each), then used like the others.
build=()
for t in ${big:+s390x} ${small:+i686}; do
  [ -d "$rust/usr/lib/rustlib/$t-unknown-linux-gnu/lib" ] || build+=("$t")
done
if [ ${#build[@]} -gt 0 ]; then
  command -v cargo >/dev/null || die "building std needs cargo"
  tmp=$(mktemp -d "$root/std.XXXX")
  src=$rust/usr/lib/rustlib/src/rust/library
  unpack "$tmp" "rust-web-src=$v"
  rm -rf "$src"
  mkdir -p "${src%/*}" "$tmp/src"
  cp -r "$tmp"/usr/src/rustc-*/library "$src"
  [ -d "$src/vendor" ] || die "rust-web-src $v lacks the crates that std needs: ${build[*]} wants a newer ARM_RUST"
  printf '[package]\nname = "mkstd"\nedition = "2021"\n[workspace]\n' >"$tmp/Cargo.toml"
  : >"$tmp/src/lib.rs"
  for t in "${build[@]}"; do
    say "building std for $t from Debian's rust-web-src $v"
    target=$t-unknown-linux-gnu
    lib=$rust/usr/lib/rustlib/$target/lib
    env -C "$tmp" -u RUSTFLAGS -u CARGO_ENCODED_RUSTFLAGS RUSTC_BOOTSTRAP=1 RUSTC="$rust/rustc" CARGO_TARGET_DIR="$tmp/t" \
      cargo build -q --release --offline --target "$target" -Z build-std=std,test,panic_abort,panic_unwind \
      --config "source.crates-io.replace-with='vendor'" --config "source.vendor.directory='$src/vendor'"
    rm "$tmp/t/$target"/release/deps/libmkstd*
    rm -rf "$lib.new"
    mkdir -p "$lib.new"
    cp "$tmp/t/$target"/release/deps/*.rlib "$lib.new/"
    mv "$lib.new" "$lib"
  done
  rm -r "$tmp" "$rust/usr/lib/rustlib/src"
fi

# Debian 12's emulator takes the first factor of s390x's MDEBR, the product of two binary32 numbers in binary64, for a
# binary64 number; QEMU 8.1 does not (its commit "target/s390x: Fix MDEB and MDEBR"). So this one is of the backports.
if [ -n "$big" ] && [ ! -x "$root/bin/qemu-s390x" ]; then
  say "unpacking the backports' emulator for s390x"
  sed -n 's/ bookworm main$/ bookworm-backports main/p' "$root/apt/sources.list" >"$root/apt/backports.list"
  mkdir -p "$root/apt/backports/partial"
  conf "$root/apt/backports.conf" amd64
  sed -i "s|$root/apt/sources.list|$root/apt/backports.list|; s|$root/apt/lists|$root/apt/backports|" "$root/apt/backports.conf"
  tmp=$(mktemp -d "$root/debs.XXXX")
  APT_CONFIG=$root/apt/backports.conf apt-get update -qq
  APT_CONFIG=$root/apt/backports.conf env -C "$tmp" apt-get download -qq qemu-user
  dpkg-deb --fsys-tarfile "$tmp"/*.deb | tar -x -C "$tmp" ./usr/bin/qemu-s390x
  mv "$tmp/usr/bin/qemu-s390x" "$root/bin/qemu-s390x"
  rm -r "$tmp"
fi

# --- 4. An ARM Python, unpacked and never configured -------------------------
if [ -n "$python" ]; then
if [ ! -f "$root/sysroot/ok" ]; then
  say "unpacking Debian's arm64 Python into $root/sysroot"
  APT_CONFIG=$root/apt/arm64.conf apt-get install -y -qq --download-only python3 libstdc++6 >/dev/null
  mkdir -p "$root/sysroot"
  for d in "$root"/apt/cache/archives/*.deb; do dpkg-deb -x "$d" "$root/sysroot"; done
  rm -f "$root"/apt/cache/archives/*.deb
  : >"$root/sysroot/ok"
fi
py=$(readlink "$root/sysroot/usr/bin/python3")
pyv=${py#python}
# The wrapper lies beside python and is its argv[0], so that sys.executable is
# the wrapper and tests that start Python again work with no binfmt_misc.
cat >"$root/sysroot/usr/bin/arm-python" <<WRAP
#!/bin/sh
# The ARM Python under qemu-user, with the wheels that arm-pip put in place.
unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE LD_LIBRARY_PATH
case ":\$PYTHONPATH:" in *:$root/site:*) ;; *) PYTHONPATH=\${PYTHONPATH:+\$PYTHONPATH:}$root/site ;; esac
export PYTHONPATH PYTHONNOUSERSITE=1
exec qemu-aarch64 -cpu "\${ARM_CPU:-max,sve=off}" -L $root/sysroot -0 $root/sysroot/usr/bin/arm-python $root/sysroot/usr/bin/$py "\$@"
WRAP
cat >"$root/bin/arm-pip" <<WRAP
#!/bin/sh
# Installs wheels for the ARM Python: arm-pip NAME... or arm-pip --no-deps FILE.whl
exec python3 -m pip install -q --root-user-action=ignore --upgrade --target $root/site --only-binary=:all: \\
  --implementation cp --python-version $pyv --abi cp${pyv/./} --abi abi3 --abi none --platform linux_aarch64 \\
  $(printf -- '--platform manylinux_2_%s_aarch64 ' 36 35 34 31 28 17)--platform manylinux2014_aarch64 "\$@"
WRAP
chmod 755 "$root/sysroot/usr/bin/arm-python" "$root/bin/arm-pip"
ln -sfn "$root/sysroot/usr/bin/arm-python" "$root/bin/arm-python"
say "wheels for the ARM $py: $pypi"
# shellcheck disable=SC2086  # a list of names
"$root/bin/arm-pip" $pypi
fi

# --- 5. Prove it -------------------------------------------------------------
tmp=$(mktemp -d "$root/try.XXXX")
printf 'fn main() { println!("{} {}", std::env::consts::ARCH, 1u16.to_be() == 1); }\n' >"$tmp/t.rs"
try() { # try ARCH BIG : a program is built for ARCH, runs, and tells both
  "$rust/rustc" --target "$1-unknown-linux-gnu" -C "linker=$1-linux-gnu-gcc" -o "$tmp/t" "$tmp/t.rs"
  [ "$("${3:-qemu-$1}" -cpu max -L "/usr/$1-linux-gnu" "$tmp/t")" = "${4:-$1} $2" ] || die "a program built for $1 does not run"
}
try aarch64 false
[ -z "$big" ] || try s390x true "$root/bin/qemu-s390x"
[ -z "$small" ] || try i686 false qemu-i386 x86
[ -z "$python" ] || [ "$("$root/bin/arm-python" -c 'import platform; print(platform.machine())')" = aarch64 ] ||
  die "the ARM Python does not run"
rm -r "$tmp" "$root/apt"
printf '%s\n' "$key" >"$root/done"
say "ready: $("$rust/rustc" -V), $(qemu-aarch64 --version | head -n 1)${python:+, $py}; $(du -sh "$root" | cut -f1) in $root"
