// Package nearest guesses the known word that a mistyped word means. Errors about unknown fields,
// commands and services suggest it.
//
// It never decides anything: a guess is part of an error.
package nearest

import "strings"

// Word returns the word of known that a mistyped word probably meant, or "" if none is near.
func Word(word string, known []string) string {
	best, distance := "", 1+max(1, len(word)/3)
	for _, k := range known {
		if len(word) >= 3 && strings.HasPrefix(k, word) { // as env is environment
			return k
		}
		if d := slips(word, k); d < distance {
			best, distance = k, d
		}
	}
	return best
}

// slips counts the letters to change, add, drop or swap with their neighbour to turn a into b.
func slips(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row[0] = i + 1
		for j := range len(b) {
			change := last[j]
			if a[i] != b[j] {
				change++
			}
			row[j+1] = min(change, last[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
