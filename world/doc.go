// Package world is one process's view of the store. It has the index that every decision reads, the
// loop that follows the store, and the layouts of the stored records.
//
// It never writes to the store and decides nothing.
package world
