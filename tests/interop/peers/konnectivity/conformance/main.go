// The reference's client library against a Konnectivity server: one line of output for each case, the same for each
// server that conforms.
//
// Cases in -cases run in their order. A case "lost" prints "lost: open" when its tunnel is open, and its result when
// the tunnel has ended.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/klog/v2"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/pkg/client"
	proto "sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

var (
	socket      = flag.String("socket", "", "Unix socket of the server")
	address     = flag.String("address", "", "host:port of the server, instead of -socket")
	authority   = flag.String("ca", "", "CA of the server at -address")
	certificate = flag.String("cert", "", "client certificate for -address")
	key         = flag.String("key", "", "its key")
	blackhole   = flag.String("blackhole", "", "address that accepts no connection")
	names       = flag.String("cases", "", "comma-separated")
)

// How long anything may take.
const limit = 30 * time.Second

// Each case returns its result.
var cases = map[string]func() (string, error){
	"echo":              echo,
	"parallel":          parallel,
	"close":             closeByClient,
	"target-close":      closeByTarget,
	"half-close":        halfClose,
	"refused":           func() (string, error) { return failure(closedPort()) },
	"no-port":           func() (string, error) { return failure("127.0.0.1") },
	"no-agent":          func() (string, error) { return failure(closedPort()) },
	"protocol":          protocol,
	"dial-twice":        dialTwice,
	"cancel-dial":       cancelDial,
	"cancel-tunnel":     cancelTunnel,
	"large-write":       func() (string, error) { return write(3 << 20) },
	"oversized-write":   func() (string, error) { return write(4<<20 + 1) },
	"empty-write":       emptyWrite,
	"pause":             pause,
	"lost":              lost,
	"upload-then-close": uploadThenClose,
	"banner":            banner,
	"foreign-data":      foreignData,
	"foreign-close":     foreignClose,
}

func main() {
	klog.InitFlags(nil)
	flag.Parse()
	// The library logs what the results say.
	_ = flag.Set("logtostderr", "false")
	_ = flag.Set("stderrthreshold", "FATAL")
	klog.SetOutput(io.Discard)
	for _, name := range strings.Split(*names, ",") {
		run, ok := cases[name]
		if !ok {
			fmt.Fprintln(os.Stderr, "unknown case", name)
			os.Exit(2)
		}
		ended := make(chan string, 1)
		go func() {
			result, err := run()
			if err != nil {
				result = "FAILED: " + err.Error()
			}
			ended <- result
		}()
		select {
		case result := <-ended:
			fmt.Printf("%s: %s\n", name, result)
		case <-time.After(2 * limit):
			fmt.Printf("%s: FAILED: no end\n", name)
		}
	}
}

// endpoint returns the server's address and how to connect to it.
func endpoint() (string, []grpc.DialOption, error) {
	if *socket != "" {
		// As kube-apiserver: the path of the socket is the authority.
		dialer := grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", *socket)
		})
		return *socket, []grpc.DialOption{dialer, grpc.WithTransportCredentials(insecure.NewCredentials())}, nil
	}
	pair, err := tls.LoadX509KeyPair(*certificate, *key)
	if err != nil {
		return "", nil, err
	}
	pem, err := os.ReadFile(*authority)
	if err != nil {
		return "", nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	config := &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots}
	return *address, []grpc.DialOption{grpc.WithTransportCredentials(credentials.NewTLS(config))}, nil
}

// open makes a tunnel, which carries one connection.
func open(ctx context.Context) (client.Tunnel, error) {
	creating, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	server, options, err := endpoint()
	if err != nil {
		return nil, err
	}
	options = append(options, grpc.WithBlock(), grpc.WithReturnConnectionError())
	return client.CreateSingleUseGrpcTunnelWithContext(creating, ctx, server, options...)
}

// dial opens a connection to a target.
func dial(ctx context.Context, target string) (client.Tunnel, net.Conn, error) {
	tunnel, err := open(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("tunnel: %w", err)
	}
	dialing, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	connection, err := tunnel.DialContext(dialing, "tcp", target)
	return tunnel, connection, err
}

// done waits until the tunnel's Done channel is closed.
func done(tunnel client.Tunnel) string {
	select {
	case <-tunnel.Done():
		return "done"
	case <-time.After(limit):
		return "not done"
	}
}

// target serves each connection, and reports the bytes that it received.
func target(serve func(net.Conn) []byte) (string, <-chan []byte, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	received := make(chan []byte, 1000)
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer connection.Close()
				received <- serve(connection)
			}()
		}
	}()
	return listener.Addr().String(), received, nil
}

func echoTarget() (string, <-chan []byte, error) {
	return target(func(connection net.Conn) []byte {
		_, _ = io.Copy(connection, connection)
		return nil
	})
}

func sinkTarget() (string, <-chan []byte, error) {
	return target(func(connection net.Conn) []byte {
		all, _ := io.ReadAll(connection)
		return all
	})
}

func wait(received <-chan []byte) ([]byte, error) {
	select {
	case all := <-received:
		return all, nil
	case <-time.After(limit):
		return nil, errors.New("the target sees no end")
	}
}

func closedPort() string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return ""
	}
	defer listener.Close()
	return listener.Addr().String()
}

func pattern(length int) []byte {
	bytes := make([]byte, length)
	for at := range bytes {
		bytes[at] = byte(at % 251)
	}
	return bytes
}

// exchange sends bytes in pieces to an echo target and reads them back.
func exchange(connection net.Conn, length int) error {
	sent := pattern(length)
	failed := make(chan error, 1)
	go func() {
		for rest := sent; len(rest) > 0; {
			n, err := connection.Write(rest[:min(len(rest), 32<<10)])
			if err != nil {
				failed <- err
				return
			}
			rest = rest[n:]
		}
		failed <- nil
	}()
	back := make([]byte, length)
	if _, err := io.ReadFull(connection, back); err != nil {
		return err
	}
	if !bytes.Equal(back, sent) {
		return errors.New("other bytes came back")
	}
	return <-failed
}

func echo() (string, error) {
	address, _, err := echoTarget()
	if err != nil {
		return "", err
	}
	tunnel, connection, err := dial(context.Background(), address)
	if err != nil {
		return "", err
	}
	if err := exchange(connection, 4<<20); err != nil {
		return "", err
	}
	closed := connection.Close()
	return fmt.Sprintf("4 MiB, close %v, %s", closed, done(tunnel)), nil
}

func parallel() (string, error) {
	address, _, err := echoTarget()
	if err != nil {
		return "", err
	}
	var group sync.WaitGroup
	failed := make(chan error, 50)
	for range cap(failed) {
		group.Add(1)
		go func() {
			defer group.Done()
			tunnel, connection, err := dial(context.Background(), address)
			if err == nil {
				err = exchange(connection, 100<<10)
				connection.Close()
				done(tunnel)
			}
			failed <- err
		}()
	}
	group.Wait()
	close(failed)
	for err := range failed {
		if err != nil {
			return "", err
		}
	}
	return "50 tunnels", nil
}

func closeByClient() (string, error) {
	address, received, err := sinkTarget()
	if err != nil {
		return "", err
	}
	tunnel, connection, err := dial(context.Background(), address)
	if err != nil {
		return "", err
	}
	closed := connection.Close()
	if _, err := wait(received); err != nil {
		return "", err
	}
	n, read := connection.Read(make([]byte, 1))
	return fmt.Sprintf("close %v, %s, read %d %v, again %v", closed, done(tunnel), n, read, connection.Close()), nil
}

func closeByTarget() (string, error) {
	// It speaks when it is asked: what comes before the client has registered the connection may be lost.
	address, _, err := target(func(connection net.Conn) []byte {
		_, _ = io.ReadFull(connection, make([]byte, 1))
		_, _ = connection.Write(pattern(300 << 10))
		return nil
	})
	if err != nil {
		return "", err
	}
	tunnel, connection, err := dial(context.Background(), address)
	if err != nil {
		return "", err
	}
	if _, err := connection.Write([]byte("?")); err != nil {
		return "", err
	}
	all, err := io.ReadAll(connection)
	return fmt.Sprintf("%v bytes, %v, %s", len(all), err, done(tunnel)), nil
}

// The library has no half-close: callers that ask for it find none.
func halfClose() (string, error) {
	address, _, err := echoTarget()
	if err != nil {
		return "", err
	}
	_, connection, err := dial(context.Background(), address)
	if err != nil {
		return "", err
	}
	defer connection.Close()
	_, ok := connection.(interface{ CloseWrite() error })
	deadline := connection.SetDeadline(time.Now())
	return fmt.Sprintf("CloseWrite %v, SetDeadline %v", ok, deadline), exchange(connection, 1)
}

func failure(address string) (string, error) {
	tunnel, _, err := dial(context.Background(), address)
	if err == nil {
		return "", errors.New("the dial succeeded")
	}
	isDial, reason := client.GetDialFailureReason(err)
	text := strings.ReplaceAll(err.Error(), address, "ADDRESS")
	return fmt.Sprintf("%v %v %q, %s", isDial, reason, text, done(tunnel)), nil
}

func protocol() (string, error) {
	tunnel, err := open(context.Background())
	if err != nil {
		return "", err
	}
	_, err = tunnel.DialContext(context.Background(), "udp", closedPort())
	return fmt.Sprint(err), nil
}

func dialTwice() (string, error) {
	address, _, err := echoTarget()
	if err != nil {
		return "", err
	}
	tunnel, connection, err := dial(context.Background(), address)
	if err != nil {
		return "", err
	}
	defer connection.Close()
	_, again := tunnel.DialContext(context.Background(), "tcp", address)
	return fmt.Sprint(again), exchange(connection, 1000)
}

func cancelDial() (string, error) {
	tunnel, err := open(context.Background())
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	_, err = tunnel.DialContext(ctx, "tcp", *blackhole)
	_, reason := client.GetDialFailureReason(err)
	return fmt.Sprintf("%v %v, %s", reason, err, done(tunnel)), nil
}

func cancelTunnel() (string, error) {
	address, received, err := sinkTarget()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	tunnel, connection, err := dial(ctx, address)
	if err != nil {
		return "", err
	}
	cancel()
	ended := done(tunnel)
	if _, err := wait(received); err != nil {
		return "", err
	}
	_, read := connection.Read(make([]byte, 1))
	return fmt.Sprintf("%s, read %v", ended, read), nil
}

// One Write is one packet; packets above 4 MiB end the stream.
func write(length int) (string, error) {
	address, _, err := echoTarget()
	if err != nil {
		return "", err
	}
	tunnel, connection, err := dial(context.Background(), address)
	if err != nil {
		return "", err
	}
	n, written := connection.Write(pattern(length))
	back, read := io.ReadFull(connection, make([]byte, length))
	state := "open"
	if read != nil {
		state = done(tunnel)
	}
	connection.Close()
	return fmt.Sprintf("write %d %v, read %d %v, %s", n, written, back, read, state), nil
}

// On the wire it is a packet without data, which means nothing.
func emptyWrite() (string, error) {
	address, _, err := echoTarget()
	if err != nil {
		return "", err
	}
	_, connection, err := dial(context.Background(), address)
	if err != nil {
		return "", err
	}
	defer connection.Close()
	n, written := connection.Write(nil)
	return fmt.Sprintf("%d %v", n, written), exchange(connection, 1000)
}

// A client that does not read for some seconds loses nothing.
func pause() (string, error) {
	address, _, err := target(func(connection net.Conn) []byte {
		_, _ = io.ReadFull(connection, make([]byte, 1))
		_, _ = connection.Write(pattern(6 << 20))
		return nil
	})
	if err != nil {
		return "", err
	}
	_, connection, err := dial(context.Background(), address)
	if err != nil {
		return "", err
	}
	defer connection.Close()
	if _, err := connection.Write([]byte("?")); err != nil {
		return "", err
	}
	time.Sleep(4 * time.Second)
	all, err := io.ReadAll(connection)
	return fmt.Sprintf("%d bytes, equal %v, %v", len(all), bytes.Equal(all, pattern(6<<20)), err), nil
}

// The caller ends the agent when the tunnel is open.
func lost() (string, error) {
	address, _, err := echoTarget()
	if err != nil {
		return "", err
	}
	tunnel, connection, err := dial(context.Background(), address)
	if err != nil {
		return "", err
	}
	if err := exchange(connection, 1000); err != nil {
		return "", err
	}
	fmt.Println("lost: open")
	n, read := connection.Read(make([]byte, 1))
	return fmt.Sprintf("read %d %v, %s", n, read, done(tunnel)), nil
}

// B4: number of complete uploads.
func uploadThenClose() (string, error) {
	address, received, err := sinkTarget()
	if err != nil {
		return "", err
	}
	const attempts, length = 10, 1 << 20
	complete, sent := 0, pattern(length)
	for range attempts {
		_, connection, err := dial(context.Background(), address)
		if err != nil {
			return "", err
		}
		for rest := sent; len(rest) > 0; rest = rest[32<<10:] {
			if _, err := connection.Write(rest[:32<<10]); err != nil {
				return "", err
			}
		}
		connection.Close()
		all, err := wait(received)
		if err != nil {
			return "", err
		}
		if bytes.Equal(all, sent) {
			complete++
		}
	}
	return fmt.Sprintf("%d of %d", complete, attempts), nil
}

// B5: number of banners of a target that speaks first.
func banner() (string, error) {
	address, _, err := target(func(connection net.Conn) []byte {
		_, _ = connection.Write([]byte("BANNER"))
		_, _ = connection.Read(make([]byte, 1))
		return nil
	})
	if err != nil {
		return "", err
	}
	const attempts = 100
	arrived := 0
	for range attempts {
		_, connection, err := dial(context.Background(), address)
		if err != nil {
			return "", err
		}
		text := make([]byte, 6)
		if _, err := io.ReadFull(connection, text); err == nil && string(text) == "BANNER" {
			arrived++
		}
		connection.Close()
	}
	return fmt.Sprintf("%d of %d", arrived, attempts), nil
}

// openStream makes a stream of packets, without the library.
func openStream() (proto.ProxyService_ProxyClient, error) {
	server, options, err := endpoint()
	if err != nil {
		return nil, err
	}
	if *socket != "" {
		server = "passthrough:///" + server
	}
	connection, err := grpc.NewClient(server, options...)
	if err != nil {
		return nil, err
	}
	return proto.NewProxyServiceClient(connection).Proxy(context.Background())
}

// connect dials a target on a stream, and returns the id of the connection.
func connect(stream proto.ProxyService_ProxyClient, target string) (int64, error) {
	request := &proto.DialRequest{Protocol: "tcp", Address: target, Random: time.Now().UnixNano()}
	packet := &proto.Packet{Type: proto.PacketType_DIAL_REQ, Payload: &proto.Packet_DialRequest{DialRequest: request}}
	if err := stream.Send(packet); err != nil {
		return 0, err
	}
	packet, err := stream.Recv()
	if err != nil {
		return 0, err
	}
	response := packet.GetDialResponse()
	if response == nil || response.Error != "" {
		return 0, fmt.Errorf("dial: %v", packet)
	}
	return response.ConnectID, nil
}

func dataPacket(connection int64, data string) *proto.Packet {
	payload := &proto.Packet_Data{Data: &proto.Data{ConnectID: connection, Data: []byte(data)}}
	return &proto.Packet{Type: proto.PacketType_DATA, Payload: payload}
}

// intrude says what becomes of a connection to an echo target whose id another client sends.
func intrude(intruderPacket func(id int64) *proto.Packet) (string, error) {
	address, _, err := echoTarget()
	if err != nil {
		return "", err
	}
	victim, err := openStream()
	if err != nil {
		return "", err
	}
	id, err := connect(victim, address)
	if err != nil {
		return "", err
	}
	intruder, err := openStream()
	if err != nil {
		return "", err
	}
	if _, err := connect(intruder, address); err != nil {
		return "", err
	}
	if err := intruder.Send(intruderPacket(id)); err != nil {
		return "", err
	}
	// The intruder's packet arrives, or is refused.
	time.Sleep(time.Second)
	if err := victim.Send(dataPacket(id, "mine")); err != nil {
		return "", err
	}
	got := ""
	for got == "" || !strings.HasSuffix(got, "mine") {
		packet, err := victim.Recv()
		if err != nil || packet.GetCloseResponse() != nil {
			return "closed", nil
		}
		got += string(packet.GetData().GetData())
	}
	return fmt.Sprintf("received %q", got), nil
}

// B13: data for a connection of another client.
func foreignData() (string, error) {
	return intrude(func(id int64) *proto.Packet { return dataPacket(id, "intruder") })
}

// B13: close of a connection of another client.
func foreignClose() (string, error) {
	return intrude(func(id int64) *proto.Packet {
		request := &proto.Packet_CloseRequest{CloseRequest: &proto.CloseRequest{ConnectID: id}}
		return &proto.Packet{Type: proto.PacketType_CLOSE_REQ, Payload: request}
	})
}
