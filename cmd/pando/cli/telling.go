package cli

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"pando.run/pando"
)

// toldAgain is the time after which the same reason is printed again.
const toldAgain = 10 * time.Second

// Told returns a function that prints what a command waits for.
func Told(to io.Writer) func(what string) {
	var mu sync.Mutex
	said := map[string]time.Time{}
	return func(what string) {
		mu.Lock()
		defer mu.Unlock()
		if what == "" || time.Since(said[what]) < toldAgain {
			return
		}
		said[what] = time.Now()
		// A lost line is harmless: the result of the command follows.
		fmt.Fprintf(to, "waits for %s\n", Clean(what))
	}
}

// Telling returns a context whose work prints what it waits for.
func Telling(ctx context.Context, to io.Writer) context.Context {
	return pando.TellWaits(ctx, Told(to))
}
