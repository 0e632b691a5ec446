// The reference's own client at the jobs of benches/konnectivity, as kube-apiserver uses it: a gRPC connection of
// its own for every tunnel (k8s.io/apiserver/pkg/server/egressselector).
package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/pkg/client"
)

var (
	socket  = flag.String("socket", "", "where the server listens")
	target  = flag.String("target", "", "where to dial")
	job     = flag.String("job", "", "download, upload, dials or idle")
	size    = flag.Int64("bytes", 0, "of a transfer")
	count   = flag.Int("count", 1, "of dials, or of idle tunnels")
	workers = flag.Int("workers", 1, "that dial")
)

func dial() net.Conn {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	dialer := grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", *socket)
	})
	tunnel, err := client.CreateSingleUseGrpcTunnelWithContext(ctx, context.Background(), *socket, dialer,
		grpc.WithBlock(), grpc.WithReturnConnectionError(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(err)
	connection, err := tunnel.DialContext(ctx, "tcp", *target)
	check(err)
	return connection
}

func main() {
	flag.Parse()
	kept := []net.Conn{}
	if *job == "idle" {
		dial().Close()
	}
	before, began := resident(), time.Now()
	switch *job {
	case "download":
		connection := dial()
		check(binary.Write(connection, binary.BigEndian, *size))
		source := io.LimitReader(connection, *size)
		n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, source, make([]byte, 64<<10))
		check(err)
		if n != *size {
			check(fmt.Errorf("%d bytes came", n))
		}
	case "upload":
		connection := dial()
		check(binary.Write(connection, binary.BigEndian, *size))
		for buffer, left := make([]byte, 64<<10), *size; left > 0; {
			n, err := connection.Write(buffer[:min(int64(len(buffer)), left)])
			check(err)
			left -= int64(n)
		}
		_, err := io.ReadFull(connection, make([]byte, 1))
		check(err)
	case "dials":
		var group sync.WaitGroup
		for range *workers {
			group.Go(func() {
				for range *count / *workers {
					dial().Close()
				}
			})
		}
		group.Wait()
	case "idle":
		for range *count {
			kept = append(kept, dial())
		}
	}
	took := time.Since(began).Seconds()
	var used syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	cpu := time.Duration(used.Utime.Nano() + used.Stime.Nano()).Seconds()
	check(json.NewEncoder(os.Stdout).Encode(map[string]float64{
		"seconds": took, "cpu": cpu, "resident": float64(resident() - before),
	}))
	for _, connection := range kept {
		connection.Close()
	}
}

// Bytes of memory this process has.
func resident() int64 {
	statm, err := os.ReadFile("/proc/self/statm")
	check(err)
	pages, err := strconv.ParseInt(strings.Fields(string(statm))[1], 10, 64)
	check(err)
	return pages * int64(os.Getpagesize())
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
