#!/bin/bash
# Runs inside the copy of the system once it is booted, started by its systemd, with the package in two versions.
set -u
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C DEBIAN_FRONTEND=noninteractive SYSTEMD_PAGER=
first=/opt/packages/$1 second=/opt/packages/$2

say() { printf '%s\n' "$*" >&2; }
is() { [ "$1" = "$2" ] || { say "is '$1', and not '$2' ${3:-}"; return 1; }; }
refuse() { if "$@" >&2; then say "this should have failed: $*"; return 1; fi; }
show() { systemctl show --value -p "$1" "$2"; }

an_upgrade_restarts_what_runs_and_a_removal_stops_it() {
    dpkg --install "$first" </dev/null >&2
    install -d -m 700 /etc/wireguard
    local name
    for name in wg0 wg1; do
        (umask 077; printf '[Interface]\nPrivateKey = %s\nAddress = 10.9.%s.1/24\n' "$(weft genkey)" "${name#wg}" \
            >/etc/wireguard/$name.conf)
    done
    is "$(systemctl list-units --all --no-legend 'weft*')" "" "before anything is started"
    systemctl enable --now weft@wg0
    systemctl enable weft@wg1
    local process
    process=$(show MainPID weft@wg0)
    ip link show wg0 >&2

    dpkg --install "$second" </dev/null >&2
    is "$(show ActiveState weft@wg0)" active
    [ "$(show MainPID weft@wg0)" != "$process" ] || { say "the old program runs on"; return 1; }
    is "$(show ActiveState weft@wg1)" inactive "although it is enabled: nobody had started it"
    is "$(show NeedDaemonReload weft@wg0)" no

    if command -v nft >/dev/null; then
        systemctl start weft-gateway
        nft list table inet weft-gateway >/dev/null
        is "$(cat /proc/sys/net/ipv4/ip_forward)" 1
        # Without a transaction there would be a moment without rules; a wrong line leaves the old ones.
        cp /etc/weft/gateway.nft /opt/gateway.nft
        echo nonsense >>/etc/weft/gateway.nft
        refuse systemctl reload weft-gateway
        nft list table inet weft-gateway >/dev/null
        cp /opt/gateway.nft /etc/weft/gateway.nft
        systemctl reload weft-gateway
        systemctl stop weft-gateway
        nft list table inet weft-gateway >/dev/null
    fi

    dpkg --remove weft </dev/null >&2
    refuse ip link show wg0
    is "$(systemctl list-units --no-legend --state=active,failed 'weft*')" "" "after the removal"
    ! command -v nft >/dev/null || is "$(nft list tables)" ""
    dpkg --purge weft </dev/null >&2
    is "$(systemctl list-units --all --no-legend 'weft*' | grep -v not-found || true)" "" "after the purge"
}

every_command_of_the_gateway_guide_works() {
    # What it finds wrong with this machine is not what is tried.
    awk '/^```sh/ {on = 1; next} /^```/ {on = 0} on' /opt/GATEWAY.md | sed 's/^weft doctor$/& || true/' >/opt/guide.sh
    [ "$(wc -l </opt/guide.sh)" -gt 40 ] || { say "the guide has lost its commands"; return 1; }
    (cd /opt/packages && bash -eu -o pipefail -x /opt/guide.sh >/opt/guide.log 2>&1) || { tail -30 /opt/guide.log >&2; return 1; }
    is "$(show ActiveState weft@wg0)" active
    is "$(weft show wg0 peers | wc -l)" 11 peers
    is "$(weft show wg0 public-key)" "$(weft pubkey </etc/wireguard/wg0.key)" "the key that came as a credential"
    is "$(cat /proc/sys/net/ipv4/ip_forward)" 1
    nft list set inet weft-gateway may_talk_4 | grep -q 10.9.0.8/30
    local n
    for n in 2 11; do weft check "/root/peers/$n.conf" >&2; done
    tar --list --file /root/weft-backup.tar.gz | grep -q etc/wireguard/wg0.key
    dpkg --purge weft </dev/null >&2
    rm -r /etc/wireguard /etc/systemd/system/weft@wg0.service.d
    systemctl daemon-reload
}

# A scenario says on standard error what is wrong.
scenario() {
    local how=ok
    say "== $1"
    set +e
    (set -eE; trap 'say "line $LINENO ended with $?: $BASH_COMMAND"' ERR; "$1")
    if [ $? -ne 0 ]; then how=failed; journalctl --no-pager -n 40 >&2; fi
    printf '%s\t%s\n' $how "$1" >>/out/booted
}

if command -v nft >/dev/null; then
    scenario every_command_of_the_gateway_guide_works
else
    printf 'not run: nftables is not installed\tevery_command_of_the_gateway_guide_works\n' >>/out/booted
fi
scenario an_upgrade_restarts_what_runs_and_a_removal_stops_it
