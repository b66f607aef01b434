#!/bin/bash
# The .rpm. Runs inside the copy of the system, which is Debian's: what it needs is not looked for.
set -u
. "$(dirname "$0")/helpers.sh"
results=/tmp/results/results
first=$(echo /tmp/packages/weft-*-1.*.rpm) second=$(echo /tmp/packages/weft-*-2.*.rpm)
deb=$(echo /tmp/packages/weft_*-1_*.deb)

the_rpm_has_what_the_deb_has() {
    # Where Fedora has it elsewhere, or not at all.
    local elsewhere='s,/usr/share/zsh/vendor-completions/,/usr/share/zsh/site-functions/,
        s,/usr/share/doc/weft/THIRD-PARTY,/usr/share/licenses/weft/THIRD-PARTY,
        s,/usr/share/doc/weft/copyright$,/usr/share/licenses/weft/LICENSE,'
    diff <(dpkg-deb --fsys-tarfile "$deb" | tar --list --verbose --numeric-owner | awk '!/^d/ {print $1, $2, substr($6, 2)}' \
        | grep -v '/changelog.Debian.gz$' | sed -e 's,0/0,root root,' -e "$elsewhere" | sort) \
        <(rpm -qp --qf '[%{FILEMODES:perms} %{FILEUSERNAME} %{FILEGROUPNAME} %{FILENAMES}\n]' "$first" | sort) >&2
    # The program has its symbols in another file there, and the licence is told another way.
    local files=/tmp/files
    dpkg-deb --extract "$deb" $files
    diff <(cd $files && find . -type f ! -path ./usr/bin/weft ! -name copyright ! -name changelog.Debian.gz -exec sha256sum {} + \
        | sed -e 's/  \./ /' -e "$elsewhere" | sort) \
        <(rpm -qp --qf '[%{FILEDIGESTS} %{FILENAMES}\n]' "$first" | grep -vE ' (/usr/bin/weft|.*/LICENSE)$' | sort) >&2
    rm -r $files
    is "$(rpm -qp --qf '[%{FILEFLAGS:fflags} %{FILENAMES}\n]' "$first" | grep '^[^ ]*c')" \
        "$(printf 'cn /etc/weft/gateway.nft\ncn /etc/weft/gateway.sysctl')" "among the configuration files"
}

an_rpm_brings_everything_and_starts_nothing() {
    rpm_install --install "$first"
    is "$(weft --version)" "weft $(rpm -q --qf '%{VERSION}' weft)"
    is "$(rpm --verify --nodeps weft)" "" "among what is not as the package has it"
    is "$(mode /etc/wireguard)" "drwx------ root:root"
    is "$(mode /run/wireguard)" "drwxrwx--T root:weft"
    is "$(mode /run/weft)" "drwxr-x--- root:weft"
    is "$(getent passwd weft | cut -d : -f 6,7)" "/:/usr/sbin/nologin"
    is "$(enabled)" "" "enabled"
}

an_rpm_upgrade_keeps_what_the_operator_wrote() {
    (umask 077; printf '[Interface]\nPrivateKey = %s\n' "$(weft genkey)" >/etc/wireguard/wg0.conf)
    sed -i 's/10\.9\.0\.2 \. 10\.9\.0\.3/10.9.0.8\/29 . 10.9.0.8\/29/' /etc/weft/gateway.nft
    systemctl enable weft@wg0 weft-gateway >&2
    local before
    before=$(cat /etc/wireguard/wg0.conf /etc/weft/gateway.nft | sha256sum; enabled; mode /etc/wireguard; id weft)
    rpm_install --upgrade "$second"
    is "$(rpm -q --qf '%{RELEASE}' weft)" 2
    is "$(cat /etc/wireguard/wg0.conf /etc/weft/gateway.nft | sha256sum; enabled; mode /etc/wireguard; id weft)" "$before"
    is "$(ls /etc/weft)" "$(printf 'gateway.nft\ngateway.sysctl')"
    is "$(enabled | wc -l)" 2 "what is enabled"
    # The way back.
    rpm_install --upgrade --oldpackage "$first"
    is "$(rpm -q --qf '%{RELEASE}' weft)" 1
    is "$(cat /etc/wireguard/wg0.conf /etc/weft/gateway.nft | sha256sum; enabled; mode /etc/wireguard; id weft)" "$before"
}

an_rpm_erasure_leaves_keys_and_what_was_edited() {
    local files path
    files=$(rpm -ql weft)
    # Of a daemon that crashed.
    mkdir -p /run/weft/wg0
    touch /run/weft/wg0/record.json /run/weft/wg0/lock
    rules load
    rpm --erase weft >&2
    ! has_nft || is "$(nft list tables)" ""
    gone $files /usr/share/weft /usr/share/doc/weft /usr/share/licenses/weft /run/weft /run/wireguard
    is "$(enabled)" "" "enabled"
    there /etc/wireguard/wg0.conf
    is "$(ls /etc/weft)" gateway.nft.rpmsave
    grep -q '10.9.0.8/29' /etc/weft/gateway.nft.rpmsave
    getent passwd weft >&2
    rm -r /etc/wireguard /etc/weft
}

an_rpm_erasure_leaves_what_an_interface_that_runs_needs() {
    rpm_install --install "$first"
    by_hand hand rpm --erase weft
    rm -r /etc/wireguard
}

an_rpm_erasure_leaves_directories_of_other_packages() {
    # As filesystem on Fedora has them.
    cat >/tmp/others.spec <<'SPEC'
Name: others
Version: 1
Release: 1
Summary: Directories
License: none
BuildArch: noarch
%description
%install
mkdir -p %{buildroot}
cd %{buildroot}
mkdir -p usr/share/bash-completion/completions usr/share/fish/vendor_completions.d usr/share/zsh/site-functions
%files
%dir /usr/share/*
%dir /usr/share/*/*
SPEC
    rpmbuild --quiet -bb --define '_topdir /tmp/others' /tmp/others.spec >&2
    rpm_install --install /tmp/others/RPMS/noarch/others-1-1.noarch.rpm "$first"
    rpm --erase weft >&2
    is "$(rpm --verify others)" "" "missing"
    rpm --erase others >&2
    gone /usr/share/{bash-completion,fish,zsh}
    rm -r /etc/wireguard /tmp/others*
}

scenario the_rpm_has_what_the_deb_has
scenario an_rpm_brings_everything_and_starts_nothing
scenario an_rpm_upgrade_keeps_what_the_operator_wrote
scenario an_rpm_erasure_leaves_keys_and_what_was_edited
scenario an_rpm_erasure_leaves_what_an_interface_that_runs_needs
scenario an_rpm_erasure_leaves_directories_of_other_packages
