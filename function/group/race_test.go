//go:build race

package group

const slower = 5
