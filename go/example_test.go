//go:build cgo

package dlm_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"time"

	"libdlm.org/dlm"
)

// store returns a new empty store. A program uses "embedded:" or "hbase://master:16000/table".
func store() (uri string, remove func()) {
	dir, err := os.MkdirTemp("", "dlm")
	if err != nil {
		log.Fatal(err)
	}
	return "embedded:" + dir + "?timeout=60s", func() { os.RemoveAll(dir) }
}

func Example() {
	uri, remove := store()
	defer remove()
	ctx := context.Background() // in a server, use the context of the request

	manager, err := dlm.Open(uri, dlm.Client("order-service"), dlm.Farm("dc1"))
	if err != nil {
		log.Fatal(err)
	}
	defer manager.Close()
	if err := manager.Initialize(ctx); err != nil {
		log.Fatal(err)
	}

	lease, err := manager.Lock(ctx, dlm.DC("order-42"), dlm.TTL(30*time.Second), dlm.Wait(5*time.Second))
	if errors.Is(err, dlm.ErrLocked) {
		fmt.Println("busy:", err)
		return
	} else if err != nil {
		log.Fatal(err)
	}
	defer lease.Release()

	if err := lease.Check(); err != nil { // before each step that needs the lock
		log.Fatal(err)
	}
	fmt.Println("holding", lease.Name(), "with a fence:", lease.Fence() > 0)
	// Output: holding DC#order-42 with a fence: true
}

func ExampleManager_TryLock() {
	uri, remove := store()
	defer remove()
	manager, err := dlm.Open(uri, dlm.Client("order-service"))
	if err != nil {
		log.Fatal(err)
	}
	defer manager.Close()
	ctx := context.Background()

	nightly := dlm.XDC("nightly-report") // one lock for all data centres
	lease, err := manager.TryLock(ctx, nightly, dlm.TTL(10*time.Minute))
	if err != nil {
		log.Fatal(err)
	}
	_, err = manager.TryLock(ctx, nightly)
	fmt.Println(errors.Is(err, dlm.ErrLocked))
	fmt.Println(lease.Release())
	fmt.Println(lease.Release()) // a second time does nothing
	// Output:
	// true
	// <nil>
	// <nil>
}

// The deadline of a request bounds the wait. The error differs from that of a held lock.
func ExampleManager_Lock_deadline() {
	uri, remove := store()
	defer remove()
	manager, err := dlm.Open(uri, dlm.Client("order-service"))
	if err != nil {
		log.Fatal(err)
	}
	defer manager.Close()
	lease, err := manager.Lock(context.Background(), dlm.XDC("order-42"))
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release()

	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	_, err = manager.Lock(ctx, dlm.XDC("order-42"))
	fmt.Println(errors.Is(err, context.DeadlineExceeded), errors.Is(err, dlm.ErrLocked))
	// Output: true false
}

// Work that uses the lease's context stops when the lease is lost.
func ExampleLease_Context() {
	uri, remove := store()
	defer remove()
	manager, err := dlm.Open(uri, dlm.Client("order-service"))
	if err != nil {
		log.Fatal(err)
	}
	defer manager.Close()
	lease, err := manager.Lock(context.Background(), dlm.XDC("order-42"), dlm.TTL(3*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := lease.Context(context.Background())
	defer cancel()

	<-ctx.Done() // the lease is not renewed
	fmt.Println(errors.Is(context.Cause(ctx), dlm.ErrLost), errors.Is(lease.Check(), dlm.ErrLost))
	time.Sleep(time.Second) // in the store, the lease ends a tenth of the TTL later
	fmt.Println(errors.Is(lease.Release(), dlm.ErrLost))
	// Output:
	// true true
	// true
}

func ExampleLatch() {
	uri, remove := store()
	defer remove()
	manager, err := dlm.Open(uri, dlm.Client("order-service"), dlm.Farm("dc1"))
	if err != nil {
		log.Fatal(err)
	}
	defer manager.Close()
	ctx := context.Background()

	loaded := manager.Latch(dlm.DC("regions-loaded"), dlm.CountDown)
	if err := loaded.CreateFor(ctx, "worker-1", "worker-2"); err != nil {
		log.Fatal(err)
	}
	if _, err := loaded.CountDownAs(ctx, "worker-2"); err != nil { // usually each worker is its own process
		log.Fatal(err)
	}
	fmt.Println(loaded.Pending(ctx))
	go loaded.CountDownAs(ctx, "worker-1")
	fmt.Println(loaded.Wait(ctx))
	// Output:
	// [worker-1] <nil>
	// <nil>
}

// Of all processes that try at the same time, exactly one creates the row. The others find it.
func ExampleRow_Create() {
	ctx := context.Background()
	table, err := dlm.OpenTable("hbase://master1:16000,master2:16000/orders?anchor=d:id")
	if err != nil {
		log.Fatal(err)
	}
	defer table.Close()

	order := table.Row("order-42").ExactlyOnce()
	created, err := order.Create(ctx, new(dlm.Cells).Put("d:id", []byte("42")).Put("d:state", []byte("new")))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(created)
	paid, err := order.CompareAndSet(ctx, "d:state", []byte("new"), []byte("paid"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(paid)
}

// When a lock holder was paused for too long, the row refuses its write and the error says why.
func ExampleLease_Row() {
	ctx := context.Background()
	manager, err := dlm.Open("hbase://master1:16000/locks", dlm.Client("reports"))
	if err != nil {
		log.Fatal(err)
	}
	defer manager.Close()
	table, err := dlm.OpenTable("hbase://master1:16000/reports?family=d")
	if err != nil {
		log.Fatal(err)
	}
	defer table.Close()
	lease, err := manager.Lock(ctx, dlm.XDC("nightly"))
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release()

	report, err := lease.Row(table, "report")
	if err != nil {
		log.Fatal(err)
	}
	err = report.Put(ctx, new(dlm.Cells).Put("d:text", []byte("all is well")))
	var stale *dlm.Error
	if errors.Is(err, dlm.ErrStaleFence) && errors.As(err, &stale) {
		fmt.Println("fence", stale.Fence, "is lower than", stale.StoredFence)
	}
}

func ExampleManager_MetricsText() {
	manager, err := dlm.Open("memory:", dlm.Client("order-service"))
	if err != nil {
		log.Fatal(err)
	}
	defer manager.Close()
	http.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) {
		page, err := manager.MetricsText()
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		io.WriteString(w, page)
	})

	answer := httptest.NewRecorder()
	http.DefaultServeMux.ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	fmt.Println(answer.Code, strings.HasPrefix(answer.Body.String(), "# HELP dlm_"))
	// Output: 200 true
}
