// Package world is everything that the store says, as one process has read it: the index that every
// decision reads, the loop that follows the store, and the layouts of the stored records.
//
// It never writes to the store and decides nothing.
package world
