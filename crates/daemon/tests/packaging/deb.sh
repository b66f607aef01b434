#!/bin/bash
# The .deb. Runs inside the copy of the system.
set -u
. "$(dirname "$0")/helpers.sh"
results=/tmp/results/results
first=$(echo /tmp/packages/weft_*-1_*.deb) second=$(echo /tmp/packages/weft_*-2_*.deb)

# As a user verifies it: the sums by their signature, and the files by the sums.
what_was_made_is_signed() {
    cd /tmp/packages || return
    minisign -Vm SHA256SUMS -p key.pub >&2
    sha256sum --check SHA256SUMS >&2
    is "$(awk '{print $2}' SHA256SUMS | sort | xargs)" "$(find . -name '*[-_]*-2[._]*' -printf '%P\n' | sort | xargs)"
    sed 's/^./0/; s/^00/11/' SHA256SUMS >forged
    cp SHA256SUMS.minisig forged.minisig
    refuse minisign -Vm forged -p key.pub
    rm forged*
}

an_installation_brings_everything_and_starts_nothing() {
    dpkg --install "$first"
    is "$(weft --version)" "weft $(dpkg-deb --field "$first" Version | cut -d - -f 1)"
    is "$(dpkg-query --show --showformat '${db:Status-Abbrev}' weft)" "ii "

    # Which user may do what with it.
    is "$(mode /usr/bin/weft)" "-rwxr-xr-x root:root"
    is "$(mode /etc/wireguard)" "drwx------ root:root"
    is "$(mode /run/wireguard)" "drwxrwx--T root:weft"
    is "$(mode /run/weft)" "drwxr-x--- root:weft"
    local odd
    odd=$(dpkg-query --listfiles weft | while read -r path; do
        [ -d "$path" ] || stat -c '%n %U:%G %a' "$path"
    done | grep -vE ' root:root (755|644)$' || true)
    is "$odd" "" "among the modes of files"
    is "$(getent passwd weft | cut -d : -f 6,7)" "/:/usr/sbin/nologin"
    is "$(id -nG weft)" weft

    # An installation starts and enables nothing.
    is "$(enabled)" "" "enabled"
    is "$(dpkg-query --show --showformat '${Conffiles}' weft | awk '{print $1}' | xargs)" \
        "/etc/weft/gateway.nft /etc/weft/gateway.sysctl"
    local unit
    for unit in weft@.service weft-client@.service weft-gateway.service; do there "/usr/lib/systemd/system/$unit"; done
    there /usr/share/polkit-1/rules.d/50-weft-resolved.rules /usr/share/weft/{full-tunnel.conf,apparmor.d/weft,prometheus/weft.rules.yml} \
        /usr/share/weft/gateway/{wg0,key,client}.conf
    # The profile is for parsers that know it.
    if [ -e /etc/apparmor.d/abi/4.0 ]; then there /etc/apparmor.d/weft; else gone /etc/apparmor.d/weft; fi

    # What is read works.
    local page
    for page in /usr/share/man/man1/weft*.gz; do zcat "$page" | grep -q '^\.TH'; done
    weft --help | awk '/^Options:/ {exit} /^  [a-z]/ {print $1}' | while read -r command; do
        there "/usr/share/man/man1/weft-$command.1.gz"
    done
    there /usr/share/man/man1/weft-up.1.gz /usr/share/man/man5/weft.conf.5.gz /usr/share/doc/weft/{README.md,docs/GATEWAY.md}
    bash -c '. /usr/share/bash-completion/completions/weft && complete -p weft' >&2
    zcat /usr/share/doc/weft/THIRD-PARTY-NOTICES.gz | grep -q '^boringtun '
    zcat /usr/share/doc/weft/weft.cdx.json.gz | jq --exit-status '.components
        | any(.name == "boringtun") and all(.purl and .licenses[0].expression and (.hashes[0].content | length == 64))' >&2
    zcat /usr/share/doc/weft/changelog.Debian.gz | grep -q "^weft ($(dpkg-deb --field "$first" Version))"
    grep -q common-licenses /usr/share/doc/weft/copyright
    # The test's own, which also is not a placeholder.
    is "$(sed -n 's/^Contact: //p' /usr/share/doc/weft/SECURITY.md)" "Test & Co <test@localhost>"
    is "$(dpkg-query --show --showformat '${Maintainer}' weft)" "Test & Co <test@localhost>"
    ! command -v nft >/dev/null || nft --check --file /etc/weft/gateway.nft
}

an_upgrade_keeps_what_the_operator_wrote() {
    (umask 077; printf '[Interface]\nPrivateKey = %s\n' "$(weft genkey)" >/etc/wireguard/wg0.conf)
    sed -i 's/10\.9\.0\.2 \. 10\.9\.0\.3/10.9.0.8\/29 . 10.9.0.8\/29/' /etc/weft/gateway.nft
    chgrp weft /etc/wireguard && chmod 750 /etc/wireguard
    systemctl enable weft@wg0 weft-gateway >&2
    local before
    before=$(cat /etc/wireguard/wg0.conf /etc/weft/gateway.nft | sha256sum; enabled; mode /etc/wireguard; id weft)
    dpkg --install "$second"
    is "$(dpkg-query --show --showformat '${Version}' weft)" "$(dpkg-deb --field "$second" Version)"
    is "$(cat /etc/wireguard/wg0.conf /etc/weft/gateway.nft | sha256sum; enabled; mode /etc/wireguard; id weft)" "$before"
    is "$(ls /etc/weft)" "$(printf 'gateway.nft\ngateway.sysctl')"
    # And again, as after an upgrade that was interrupted.
    dpkg-reconfigure weft >&2
    is "$(cat /etc/wireguard/wg0.conf /etc/weft/gateway.nft | sha256sum; enabled; mode /etc/wireguard; id weft)" "$before"
}

a_removal_leaves_configurations_alone() {
    local files path
    files=$(dpkg-query --listfiles weft)
    dpkg --remove weft
    for path in $files; do
        [ -d "$path" ] || case $path in /etc/weft/*) there "$path" ;; *) gone "$path" ;; esac
    done
    there /etc/wireguard/wg0.conf
    grep -q '10.9.0.8/29' /etc/weft/gateway.nft
    # A second installation finds everything as it was.
    dpkg --install "$second"
    grep -q '10.9.0.8/29' /etc/weft/gateway.nft
    is "$(enabled | wc -l)" 2 "what was enabled"
}

a_purge_leaves_keys_and_nothing_else() {
    # Of a daemon that crashed.
    mkdir -p /run/weft/wg0
    touch /run/weft/wg0/record.json /run/weft/wg0/lock
    rules load
    dpkg --purge weft
    ! has_nft || is "$(nft list tables)" ""
    gone /etc/weft /run/weft /run/wireguard /usr/share/weft /usr/bin/weft
    is "$(enabled)" "" "enabled"
    there /etc/wireguard/wg0.conf
    # The next group with its number could read what its group may.
    getent passwd weft >&2
    rm -r /etc/wireguard
}

a_removal_leaves_what_an_interface_that_runs_needs() {
    dpkg --install "$first"
    by_hand hand dpkg --purge weft
    rmdir /etc/wireguard
}

if command -v minisign >/dev/null; then scenario what_was_made_is_signed; else not_run what_was_made_is_signed "minisign is not installed"; fi
scenario an_installation_brings_everything_and_starts_nothing
scenario an_upgrade_keeps_what_the_operator_wrote
scenario a_removal_leaves_configurations_alone
scenario a_purge_leaves_keys_and_nothing_else
scenario a_removal_leaves_what_an_interface_that_runs_needs
