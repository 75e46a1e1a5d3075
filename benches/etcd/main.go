// One process of the row "etcd" of benches/handover.rs: takes a mutex of etcd's own Go client, holds it for 1 ms and
// releases it, in a loop, and prints the moments of each turn.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"golang.org/x/sys/unix"
)

const (
	hold    = time.Millisecond
	longest = 20 * time.Second
	ttl     = 90 // seconds
)

func main() {
	turns, err := strconv.Atoi(os.Args[2])
	must(err)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{os.Args[1]}, DialTimeout: 10 * time.Second})
	must(err)
	session, err := concurrency.NewSession(client, concurrency.WithTTL(ttl))
	must(err)
	mutex := concurrency.NewMutex(session, "/passed")
	fmt.Println("ready")
	_, err = bufio.NewReader(os.Stdin).ReadString('\n')
	must(err)
	ctx, end := context.Background(), time.Now().Add(longest)
	var taken [][3]int64
	for len(taken) < turns && time.Now().Before(end) {
		began := now()
		must(mutex.Lock(ctx))
		granted := now()
		time.Sleep(hold)
		must(mutex.Unlock(ctx))
		taken = append(taken, [3]int64{began, granted, now()})
	}
	must(session.Close())
	for _, it := range taken {
		fmt.Println(it[0], it[1], it[2])
	}
	fmt.Println("calls 0")
}

// now reads a clock that all processes of a machine share.
func now() int64 {
	var at unix.Timespec
	must(unix.ClockGettime(unix.CLOCK_MONOTONIC, &at))
	return at.Nano()
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
