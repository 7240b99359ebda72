// Places the graph away from the page's thread, so that the page stays quick meanwhile.

import type { Graph } from '../../api/types'
import { placeGraph } from './layout'

self.onmessage = (message: MessageEvent<{ number: number; graph: Graph }>) => {
  const { number, graph } = message.data
  self.postMessage({ number, placed: placeGraph(graph) })
}
