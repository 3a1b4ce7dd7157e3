package balance

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"
)

const size = 16384

func count(table []uint16, n int) []int {
	out := make([]int, n)
	for _, v := range table {
		out[v]++
	}
	return out
}

// Every endpoint has its share, an endpoint of weight 0 has none, and the order of ids does not
// matter.
func TestSharesFollowWeights(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 40).Draw(t, "endpoints")
		ids, weights, sum := make([]string, n), make([]int, n), 0
		for i := range n {
			ids[i] = fmt.Sprintf("web-%d", i)
			weights[i] = rapid.IntRange(0, 5).Draw(t, "weight") * 20
			sum += weights[i]
		}
		table := Buckets(ids, weights, size)
		if sum == 0 {
			if table != nil {
				t.Fatalf("a table without weights")
			}
			return
		}
		for i, got := range count(table, n) {
			want := float64(size) * float64(weights[i]) / float64(sum)
			if math.Abs(float64(got)-want) > want*0.02+float64(n) {
				t.Fatalf("endpoint %d of weight %d has %d buckets, want about %.0f", i, weights[i], got, want)
			}
		}
		for i := range n / 2 {
			ids[i], ids[n-1-i] = ids[n-1-i], ids[i]
			weights[i], weights[n-1-i] = weights[n-1-i], weights[i]
		}
		for at, v := range Buckets(ids, weights, size) {
			if int(v) != n-1-int(table[at]) {
				t.Fatalf("bucket %d depends on the order of listing", at)
			}
		}
	})
}

// A table of any size is full, of a prime or of a power of two, and no endpoint has far more than
// its share.
func TestATableOfAnySizeIsFull(t *testing.T) {
	for _, size := range []int{2, 3, 128, 256, 4093, 16381, 65536} {
		for _, n := range []int{1, 2, 7, 64} {
			ids, weights := make([]string, n), make([]int, n)
			for i := range n {
				ids[i], weights[i] = fmt.Sprintf("web-%d", i), 100
			}
			table := Buckets(ids, weights, size)
			if len(table) != size {
				t.Fatalf("%d buckets, want %d", len(table), size)
			}
			for i, got := range count(table, n) {
				if most := (size+n-1)/n + 1; got > most {
					t.Errorf("endpoint %d of %d has %d of %d buckets, want at most %d", i, n, got, size, most)
				}
			}
		}
	}
}

// A new endpoint takes its share and moves few buckets between the others.
func TestAChangeMovesLittle(t *testing.T) {
	ids, weights := []string{}, []int{}
	for n := range 8 {
		ids, weights = append(ids, fmt.Sprintf("web-%d", n)), append(weights, 100)
	}
	before := Buckets(ids, weights, size)
	after := Buckets(append(ids, "web-new"), append(weights, 100), size)
	moved := 0
	for at := range before {
		if after[at] != before[at] && after[at] != 8 {
			moved++
		}
	}
	if share := float64(moved) / size; share > 0.1 {
		t.Errorf("%.1f %% of the buckets moved between endpoints that stayed", 100*share)
	}
}

func BenchmarkBuckets(b *testing.B) {
	for _, n := range []int{4, 1024} {
		ids, weights := make([]string, n), make([]int, n)
		for i := range ids {
			ids[i], weights[i] = fmt.Sprintf("web-%d", i), 100
		}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				Buckets(ids, weights, size)
			}
		})
	}
}
