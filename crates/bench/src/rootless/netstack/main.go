// A user without root forwards TCP ports into a WireGuard tunnel by wireguard-go and its tun/netstack (gVisor).
// Arguments: a file in the format of the UAPI's set, the tunnel's address, its MTU, and LOCAL=REMOTE pairs.
package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun/netstack"
)

func main() {
	settings, err := os.ReadFile(os.Args[1])
	check(err)
	address, err := netip.ParseAddr(os.Args[2])
	check(err)
	mtu, err := strconv.Atoi(os.Args[3])
	check(err)
	tunnel, network, err := netstack.CreateNetTUN([]netip.Addr{address}, nil, mtu)
	check(err)
	wireguard := device.NewDevice(tunnel, conn.NewDefaultBind(), device.NewLogger(device.LogLevelError, ""))
	check(wireguard.IpcSet(string(settings)))
	check(wireguard.Up())
	for _, pair := range os.Args[4:] {
		local, remote, _ := strings.Cut(pair, "=")
		listener, err := net.Listen("tcp", local)
		check(err)
		go serve(listener, network, remote)
	}
	fmt.Println("serving")
	select {}
}

func serve(listener net.Listener, network *netstack.Net, remote string) {
	for {
		client, err := listener.Accept()
		check(err)
		go func() {
			defer client.Close()
			server, err := network.Dial("tcp", remote)
			if err != nil {
				log.Print(err)
				return
			}
			defer server.Close()
			done := make(chan struct{})
			go func() {
				relay(server, client)
				close(done)
			}()
			relay(client, server)
			<-done
		}()
	}
}

// Copies one direction, and passes its end on.
func relay(to, from net.Conn) {
	io.Copy(to, from)
	to.(interface{ CloseWrite() error }).CloseWrite()
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
