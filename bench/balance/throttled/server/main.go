// Server is a service with requests that cost processor time. It answers each after WORK
// milliseconds of hashing by one processor.
package main

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"time"
)

func main() {
	work, err := strconv.ParseFloat(os.Getenv("WORK"), 64)
	if err != nil {
		fmt.Fprintln(os.Stderr, "WORK:", err)
		os.Exit(1)
	}
	rounds := int(work * perMillisecond())
	http.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		hash(rounds)
		fmt.Fprintln(w, os.Getenv("PANDO_INSTANCE"))
	})
	fmt.Fprintln(os.Stderr, http.ListenAndServe(":8080", nil))
	os.Exit(1)
}

// perMillisecond returns the number of hashes in a millisecond: the best of some short trials.
func perMillisecond() float64 {
	const rounds = 2000
	best := 0.0
	for range 10 {
		begun := time.Now()
		hash(rounds)
		best = max(best, rounds/(time.Since(begun).Seconds()*1000))
	}
	return best
}

func hash(rounds int) {
	sum := sha256.Sum256(nil)
	for range rounds {
		sum = sha256.Sum256(sum[:])
	}
}
